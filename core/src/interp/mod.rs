//! The reference interpreter: slow, obvious, and right.
