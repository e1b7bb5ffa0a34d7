_manager = None
