"""A recorded run -> Anatomy: where the time of each step goes."""
