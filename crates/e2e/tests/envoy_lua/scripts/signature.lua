--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
local der = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEApRuy32cqrlQo4R61WovKaK2jDrB5a3KjtTHsOYv6m9bi/+" ..
  "wnXrSqFA6QfKypsoChehM3T25htyJYaLhQa7bSdBddj9gSJNZrW3iKCj7RBgkBoWkJV1fmVmysiry5tW8/598wIueR" ..
  "DUIp+7L4T0giUd4wR53Nc3aKxZTurkXzfHD0+ZZmcCh1IarDsDC0Uoqe2XKuFj4LNS4PeYFh6XlW+ZSrTrTjBY5EJ+" ..
  "nWORXm8229wVRfIxdSkh75msVKF96jzaIVKNEwOopnLub0sPQ0tcrcKk7JMGpyEts21tuapWRBpPbA5ORPHwVdm55p" ..
  "0xfXOg0mNB9IEhlEBQA+wkv8ZQIDAQAB"
local signed = "ar60enI5uY9vIb0czKIos9G//UOcvsYUtEjzumwnOvxei0Xx/gDaSAtPcl2wGFbqQjFxETR5NUkBD39s58pHssbGu3" ..
  "U0qVDlJqdIf3+RcXY/dm8uqWdAQdVEmF3u8kZQzVKmS7/CioXXdB4jGc1RveRxytvbTQvv7DiwqXaFzkoiGF4NGxhV" ..
  "QZTmvC8XaeXp9eZMJM746vYbB3sMok4CLWruJqRHWD8V0HxmKBl6n9hH0z1Cxd0Uq9746fGXQjJMaEL4BG3DOY9d68" ..
  "MsBZcm3BusgvPkCbXXzC1qFbCfsML0wy8MPvX9rEaviFzwanYsCVo4cztcqEdnLeKmqriunQ=="
function envoy_on_request(handle)
  local key = handle:base64Decode(der)
  local signature = handle:base64Decode(signed)
  local function attempt(...)
    local done, answer, reason = pcall(handle.verifySignature, handle, ...)
    handle:logInfo(tostring(done) .. (tostring(answer):gsub("^.-%d: ", "")) .. tostring(reason))
  end
  local imported = handle:importPublicKey(key, #key):get()
  attempt("SHA256", imported, signature, #signature, "order=42", 8)
  attempt("sha256", imported, signature, #signature, "order=42 and more", 8)
  attempt("SHA256", imported, signature, #signature, "order=43", 8)
  attempt("SHA512", imported, signature, #signature, "order=42", 8)
  attempt("SHA256", imported, signature, 9, "order=42", 8)
  attempt("MD5", imported, signature, #signature, "order=42", 8)
  attempt("SHA256", "no key", signature, #signature, "order=42", 8)
end
function envoy_on_response(handle)
  handle:logInfo(show(handle:importPublicKey("none", 4):get()))
end
