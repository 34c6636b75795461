"""Check whether machines can serve the model, before they are bought or changed."""
