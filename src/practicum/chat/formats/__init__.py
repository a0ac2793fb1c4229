"""Reply formats: `base` is the contract, `registry` makes one by its name, and each other module is one format."""
