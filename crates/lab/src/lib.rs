//! An echo service and a load client for demonstrations, tests and measurements.
