"""Check and convert expert weights with kt-kernel."""
