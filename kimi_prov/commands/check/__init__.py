"""Says beforehand whether machines can serve the model."""
