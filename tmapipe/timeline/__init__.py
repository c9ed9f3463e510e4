"""When things happen: the model's run with times from a cost model, as a timeline."""
