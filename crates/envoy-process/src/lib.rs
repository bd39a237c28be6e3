//! Finds, checks, starts, waits for, drains and stops one Envoy.
