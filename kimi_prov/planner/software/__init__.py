"""What is installed on the machine: packages, driver, environments, kernel settings."""
