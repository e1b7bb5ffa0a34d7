"""`DummyModelLoader`, which gives weights values without the model's own `load_weights`."""


class DummyModelLoader:
    def load_weights(self, model, model_config):
        return None
