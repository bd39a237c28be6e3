//! outrider.yaml: its model, validation, plan and renderers.
