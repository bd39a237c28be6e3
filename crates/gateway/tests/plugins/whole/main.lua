local handler = { version = "v2" }
function handler:on_request_body(body) end
return handler
