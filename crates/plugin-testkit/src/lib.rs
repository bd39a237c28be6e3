//! A scripted stream, clock and upstream, for tests of plugins without Envoy.
