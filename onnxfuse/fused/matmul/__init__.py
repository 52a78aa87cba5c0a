"""Matrix products with Programs behind them."""
