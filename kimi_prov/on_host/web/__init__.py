"""The page to talk to the model, and what its accounts keep."""
