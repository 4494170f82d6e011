"""The dialect of replicate's client: predictions, models and versions, over the one store."""
