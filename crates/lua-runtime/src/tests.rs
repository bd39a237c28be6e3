//! The runtime from outside: plugins as text, streams that are scripted.

mod budgets;
mod configuration;
mod fake;
mod jit;
mod loading;
mod pausing;
mod sandbox;
mod sdk;
mod version1;
