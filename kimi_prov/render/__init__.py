"""Files by which a model is served where this product does not provision: read, kept, changed."""
