//! Tests against the real Envoy.
