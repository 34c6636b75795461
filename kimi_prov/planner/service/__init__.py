"""Services around the engine: proxy, certificates, metrics, watchdog, lifecycle, timeouts."""
