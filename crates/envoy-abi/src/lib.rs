//! All talk with Envoy: its dynamic-module ABI, hooks, and the stream that plugins see.
