//! The runtime from outside: plugins as text, streams that are scripted.

mod bodies;
mod budgets;
mod callouts;
mod configuration;
mod documentation;
mod envoy_filter;
mod facts;
mod fake;
mod jit;
mod json_schemas;
mod loading;
mod lua_patterns;
mod off_worker;
mod pausing;
mod reach;
mod sandbox;
mod sdk;
mod store;
mod termination;
mod tools;
mod types;
mod version1;
