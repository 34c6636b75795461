"""Facts and wishes in, one plan out; a pure function."""
