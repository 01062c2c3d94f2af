"""The policies that come with Molt, one file each, pure functions of a view (see ``molt.core.view.Policy``)."""
