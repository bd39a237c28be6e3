//! The runtime from outside: plugins as text, streams that are scripted.

mod budgets;
mod configuration;
mod documentation;
mod facts;
mod fake;
mod jit;
mod loading;
mod pausing;
mod sandbox;
mod sdk;
mod store;
mod tools;
mod version1;
