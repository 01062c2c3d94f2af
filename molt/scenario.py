"""``python -m molt.scenario`` prints the JSON schema of scenario files in the form in which it ships."""

import json

from molt.jobs.scenario import json_schema

if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
