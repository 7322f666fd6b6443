"""The base of every REST API here: problems, paging, the view that knows its actor and tenant."""
