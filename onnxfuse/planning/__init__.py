"""From a request to a plan: what optimize and inspect begin with."""
