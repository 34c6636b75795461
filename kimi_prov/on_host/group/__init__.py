"""One model over several machines: supervisors start, watch and end its parts together."""
