//! The module that Envoy loads: reads configuration, builds generations, wires runtimes.
