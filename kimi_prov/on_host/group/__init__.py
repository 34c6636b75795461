"""One model over several machines: the supervisors that start, watch and end its parts together."""
