return { version = "v2" }
