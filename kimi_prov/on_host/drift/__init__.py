"""What on this machine differs from what was applied to it, since when and through what."""
