"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A machine that tests is busy: no example fails for the time that it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
