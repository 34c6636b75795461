"""Facts: what a machine is, however that was learnt."""
