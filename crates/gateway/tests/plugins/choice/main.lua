-- Nobody passes without a name.
local handler = { version = "v2" }

function handler:on_request_header()
  if not envoy.req.get_header("authorization") then
    envoy.respond({ [":status"] = "401" }, "who are you?\n")
  end
end

return handler
