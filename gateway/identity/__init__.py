"""Who calls: tenants, API keys and tokens. Knows neither HTTP's headers nor what is asked for."""
