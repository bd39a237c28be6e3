//! Lua plugins: LuaJIT states, the SDK, the sandbox, budgets.
