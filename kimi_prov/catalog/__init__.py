"""The catalogue: models, engines, hardware and prices, each row with its source."""
