"""What is known of models, engines and hardware, each row with its source."""
