"""The program as text. `python listing.py NAME` for one of `cases.CASES`."""

import os
import re
import sys


from tmapipe.isa.effects import declared
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.operands import Kind
from tmapipe.isa.values import SlotRef
from tmapipe.program.expressions import Expr, Var, resolve, show
from tmapipe.program.nodes import For, Function, If, While

WIDTH = 150


class Listing:
    def __init__(self, program, lines=True, tiles=False):
        self.program, self.lines, self.tiles, self.out, self.level = program, lines, tiles, [], 0
        self.last = None

    def say(self, text, where=None):
        pad = "    " * self.level
        first = f"{pad}{text}"
        if self.lines and where and where != self.last:
            file, _, line = where.rpartition(":")
            first = f"{first:<{WIDTH - 34}}  # {os.path.basename(file)}:{line}"
            self.last = where
        self.out.append(first.rstrip())

    def text(self):
        plan, isa = self.program.plan, self.program.isa
        cluster = " x ".join(f"{n} {axis}" for axis, n in plan.cluster.items()) or "1"
        self.say(f"kernel {plan.name}: {plan.warps} warps, cluster {cluster}")
        given = ", ".join(["cluster", "clusters", *(["rank"] if plan.cluster_size > 1 else []), *map(show, isa.symbols["extents"])])
        self.say(f"given  {given}")
        for ring in plan.rings:
            self.say(f"ring   {ring.name}: {ring.stages} slots, {' -> '.join('+'.join(p) for p in ring.phases)}, barriers {', '.join(b.name for b in ring.barriers)}")
        self.say("")
        self.nodes(self.program.nodes)
        return "\n".join(self.out)

    def nodes(self, nodes):
        for node in nodes:
            getattr(self, type(node).__name__)(node)

    def Let(self, node):
        pass

    # ---- structure ------------------------------------------------------------------------------------------------

    def For(self, node):
        self.say(f"for {show(node.index)} in 0 .. {show(node.count)}:{self._entry(node.carried)}", node.where)
        self._body(node)

    def While(self, node):
        self.say(f"while {show(node.condition)}:{self._entry(node.carried)}", node.where)
        self._body(node)

    def _entry(self, carried):
        shown = [f"{show(phi)} = {show(initial)}" for phi, initial, _, _ in carried if not self._same(phi, initial) and not self._hidden(phi)]
        return f"   with {', '.join(shown)}" if shown else ""

    def _same(self, phi, initial):
        return base(phi) == base(resolve(initial)) if isinstance(resolve(initial), Var) else False

    def _hidden(self, phi):
        return not self.tiles and phi.name.startswith("tile.")

    def _body(self, node):
        self.level += 1
        self.nodes(node.body)
        said, tile = [], []
        steps = {id(resolve(last)): phi for phi, _, last, _ in node.carried}
        for phi, _, last, _ in node.carried:
            if self._hidden(phi):
                tile.append(show(phi))
            elif not (isinstance(resolve(last), Var) and base(resolve(last)) == base(phi)):
                said.append(f"{show(phi)} = {self._next(phi, resolve(last))}")
        if tile:
            said.append(f"{', '.join(tile)} = of tile number {show(node.index)} + 1" if isinstance(node, For) else ", ".join(tile))
        if said:
            self.say("next   " + "; ".join(said))
        self.level -= 1

    def _next(self, phi, last):
        if isinstance(last, Expr) and last.op == "select" and isinstance(resolve(last.args[0]), Expr) and resolve(last.args[0]).op == "eq" \
                and isinstance(resolve(last.args[1]), Expr) and resolve(last.args[1]).op == "xor":
            return f"{show(last.args[2])} ^ ({show(last.args[0])})"
        return show(last)

    def If(self, node):
        where = role_of(self.program.plan, node.condition) if any(isinstance(n, (For, While)) for n in node.then) else None
        head = f"role {where}:" if where else f"if {show(node.condition)}:" + ("   # lane 0 alone" if node.lane_0 else "")
        if where:
            self.say("")
        self.say(head, None if where else node.where)
        self.level += 1
        self.nodes(node.then)
        for phi, then, _ in node.phis:
            self.say(f"{show(phi)} = {show(then)}")
        self.level -= 1
        if node.other or node.phis:
            self.say("else:")
            self.level += 1
            self.nodes(node.other)
            for phi, _, other in node.phis:
                self.say(f"{show(phi)} = {show(other)}")
            self.level -= 1

    # ---- instructions ---------------------------------------------------------------------------------------------

    def Call(self, node):
        when = node.named.get("when", True)
        tail = "" if when is True else f"   if {show(when)}"
        if node.method == "here":
            self.say(f"{show(node.results[0])} = {short(show(node.args[0]))}" if node.results[0].name == "tiles" or self.tiles else f"{show(node.results[0])} = ...", node.where)
        elif node.ops:
            runs = list(node.ops)
            if len(runs) > 2 and len({type(o) for o in runs}) == 1:
                a, b = sentence(runs[0]), sentence(runs[-1])
                self.say(f"{a}  ...  {b.split(' ', 1)[1]}", node.where)
            else:
                for i, op in enumerate(runs):
                    if type(op).__name__ == "BarWait" and i:
                        continue
                    self.say(sentence(op) + tail, node.where)
        elif node.method.startswith("fragments.") or node.results:
            name = node.method.removeprefix("fragments.")
            given = list(node.args)
            if name == "elementwise":
                name, given = given[0], given[1]
            left = ", ".join(show(r) for r in node.results)
            right = f"{name}({', '.join(filter(None, map(argument, given)))})"
            self.say((f"{left} = " if left else "") + right + tail, node.where)
        else:
            self.say(f"{node.method}({', '.join(filter(None, map(argument, node.args)))})" if node.args else node.method, node.where)


def base(var):
    return var.name.split("'")[0] if isinstance(var, Var) else None


def short(text):
    return text if len(text) < 110 else text[:107] + "..."


def argument(x):
    x = resolve(x)
    if isinstance(x, Expr):
        return short(show(x))
    if isinstance(x, SlotRef):
        return f"{x.buffer.name}[{show(x.stage)}]"
    if isinstance(x, Fragment):
        return show(x._data)
    if isinstance(x, (list, tuple)):
        return ", ".join(filter(None, map(argument, x)))
    if isinstance(x, dict):
        return ", ".join(f"{n}={argument(v)}" for n, v in x.items())
    if isinstance(x, Function):
        return x.name
    if callable(x):
        return getattr(x, "__name__", type(x).__name__)
    if isinstance(x, (int, float, str)):
        return str(x)
    return getattr(x, "name", "") if isinstance(getattr(x, "name", ""), str) else ""


def role_of(plan, condition):
    text = show(condition)
    for role in plan.roles:
        last = role.first_warp + role.warps
        forms = {f"warp == {role.first_warp}"} if role.warps == 1 else {f"warp < {last}"} if role.first_warp == 0 else {
            f"warp >= {role.first_warp} & warp < {last}", f"(warp >= {role.first_warp}) & (warp < {last})", f"warp >= {role.first_warp}"}
        if text in forms:
            return f"{role.name}, warp{'s' * (role.warps > 1)} {role.first_warp}" + (f" to {last - 1}" if role.warps > 1 else "")
    return None


def sentence(op):
    says = declared(type(op))
    if not isinstance(says.says, str):
        return f"{type(op).__name__} {op}"
    shown = {}
    for name, kind in says.operands.items():
        value = getattr(op, name)
        if kind is Kind.BAR:
            shown[name] = f"{value[0].name}[{show(value[1])}]"
        elif kind is Kind.SLOT:
            shown[name] = f"{value.buffer.name}[{show(value.stage)}]"
        elif kind is Kind.BARRIER_ID:
            shown[name] = "the CTA's barrier" if type(value) is int and value == 0 else f"barrier {show(value)}"
        elif kind is Kind.FLAG:
            shown[name] = name if value else None
        elif kind is Kind.LANES:
            shown[name] = value.bit_count()
        else:
            shown[name] = None if value is None else show(value) if isinstance(value, Expr) else value

    def optional(m):
        values = [(n, shown[n]) for n in re.findall(r"{(\w+)}", m[1])]
        return "" if any(v is None or (v == 1 and type(v) is int and n in ("lanes", "shares", "parts")) for n, v in values) else m[1]

    text = re.sub(r"\[(.*?)\](?![^{]*})", optional, says.says) if "[" in says.says else says.says
    text = text.format(**shown)
    at = getattr(op, "at", ())
    return text + (f", from ({', '.join(show(x, 0) for x in at)})" if at else "")


