//! Phases, decisions, streams, plugins and chains: what everything inside Envoy is tested through.
