--@ request GET /bytes/5
--@ differs scripts run in the sandbox of all plugins: no `io`, `debug`, `package`, `jit`, of `os` only `clock`, `date`, `difftime` and `time`; handles are tables, not userdata
function envoy_on_request(handle)
  handle:logInfo(type(io) .. type(debug) .. type(package) .. type(jit) .. type(os.getenv) .. type(handle))
end
