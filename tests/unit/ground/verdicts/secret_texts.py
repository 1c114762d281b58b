"""Texts with secrets, and variables: what is masked of each, and what is not masked, with the reason."""

from __future__ import annotations

from typing import Final

WORD: Final = "hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2hunter2"
HEX: Final = "0123456789abcdef" * 20
UPPER: Final = "HUNTER2A" * 20
LINE: Final = f"b3BlbnNzaC1rZXk{WORD[:48]}"


def word(length: int) -> str:
    """Return this many letters and digits."""
    return WORD[:length]


# A name of matrix/ground/catalog/facts/secrets.toml, a text, and what must not be left of it.
FORMATTED: Final = [
    (
        "private key",
        f"SSH_PRIVATE_KEY=-----BEGIN OPENSSH PRIVATE KEY-----\n{LINE}\n-----END OPENSSH PRIVATE KEY-----",
        LINE,
    ),
    ("private key", f"private_key: -----BEGIN PRIVATE KEY-----\n{LINE}\n{LINE}\nthe next line", LINE),
    ("private key", f"Cookie: a; -----BEGIN RSA PRIVATE KEY-----\n{LINE}\n-----END RSA PRIVATE KEY-----", LINE),
    ("private key", f'{{"key": "-----BEGIN EC PRIVATE KEY-----\\n{LINE}\\n-----END EC PRIVATE KEY-----"}}', LINE),
    (
        "private key",
        f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,01234567\n\n{LINE}",
        LINE,
    ),
    ("private key", f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{LINE}\n-----END PGP PRIVATE KEY BLOCK-----", LINE),
    ("end of a private key whose beginning is cut off", f"{LINE}\n-----END PRIVATE KEY-----\nthe next line", LINE),
    ("user and password of a URL", "https://me:hunter2@host/simple", "hunter2"),
    ("user and password of a URL", "https://me:hun/ter2@host/simple", "ter2"),
    ("user and password of a URL", "postgresql://me:hun@ter2@host:5432/db", "ter2"),
    ("user and password of a URL", "https://hunter2@host/repo.git", "hunter2"),
    ("user and password of a URL", "git+https://oauth2:hunter2@host/a.git@main", "hunter2"),
    ("user and password of a URL", "redis://:hunter2@cache:6379/0", "hunter2"),
    ("user and password of a URL", "amqp://me:hunter2@[::1]:5672", "hunter2"),
    ("bearer token", "-H 'X: bearer hunter2-hunter2'", "hunter2"),
    ("bearer token", "Bearer hunter2.hunter2", "hunter2"),
    ("basic authentication", "auth=('Basic aHVudGVyMjpodW50ZXIy')", "aHVudGVyMjpodW50ZXIy"),
    ("user and password of curl", "curl -u me:hunter2 https://host", "hunter2"),
    ("user and password of curl", "curl -sSL --user 'me:hunter2 and more' https://host", "more"),
    ("user and password of curl", 'curl -x p --proxy-user "me:hunter2" https://host', "hunter2"),
    ("password of a login command", "docker login -u me -p hunter2 registry", "hunter2"),
    ("password of a login command", "sshpass -p hunter2 ssh host", "hunter2"),
    ("key of wandb login", f"wandb login --relogin --host=https://host {HEX[:40]}", HEX[:40]),
    ("password of a connection string of ODBC", "Server=host;Uid=me;Pwd=hunter2;", "hunter2"),
    ("password of .netrc", "machine host login me password hunter2", "hunter2"),
    ("password of .npmrc", "//registry.npmjs.org/:_authToken=hunter2", "hunter2"),
    ("signature of a URL", f"https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={HEX[:64]}", HEX[:64]),
    ("signature of a URL", "https://a.blob.core.windows.net/c?sv=2024&sig=hunter2%3D", "hunter2"),
    ("key of Azure Storage, Service Bus, Event Hubs", "AccountName=a;AccountKey=hunter2hunter2==;End=b", "hunter2"),
    ("key of Azure Storage, Service Bus, Event Hubs", "Endpoint=sb://a/;SharedAccessKey=hunter2hunter2=", "hunter2"),
    ("webhook of Slack", f"https://hooks.slack.com/services/T0/B0/{word(24)}", word(24)),
    ("webhook of Discord", f"https://discord.com/api/webhooks/1/{word(60)}", word(60)),
    (
        "webhook of Microsoft Teams",
        f"https://a.webhook.office.com/webhookb2/1@2/IncomingWebhook/{word(32)}/3",
        word(32),
    ),
    ("webhook of Google Chat", f"https://chat.googleapis.com/v1/spaces/A/messages?k=1&t={word(40)}", word(40)),
    ("bot of Telegram", f"https://api.telegram.org/bot123456789:AA{word(33)}/getMe", word(33)),
    ("JSON web token", "eyJhbGciOiJIUzI1NiJ9.eyJodW50ZXIyIjoi.hunter2-secret", "hunter2"),
    ("GitHub", f"ghp_{word(36)}", word(36)),
    ("GitHub", f"github_pat_{word(82)}", word(82)),
    ("GitLab", f"glpat-{word(20)}", word(20)),
    ("GitLab", f"glcbt-64_{word(20)}", word(20)),
    ("Hugging Face", f"hf_{word(34)}", word(34)),
    ("NVIDIA NGC", f"nvapi-{word(64)}", word(64)),
    ("OpenAI, Anthropic, DeepSeek, OpenRouter", f"sk-proj-{word(74)}", word(74)),
    ("OpenAI, Anthropic, DeepSeek, OpenRouter", f"sk-ant-api03-{word(93)}AA", word(93)),
    ("Groq, xAI, Replicate, Perplexity", f"gsk_{word(52)}", word(52)),
    ("Weights & Biases", f"wandb_v1_{word(60)}", word(60)),
    ("PyPI", f"pypi-AgEIcHlwaS5vcmc{word(60)}", word(60)),
    ("npm", f"npm_{word(36)}", word(36)),
    ("RubyGems", f"rubygems_{HEX[:48]}", HEX[:48]),
    ("Docker Hub", f"dckr_pat_{word(27)}", word(27)),
    ("Artifactory", f"AKCp{word(69)}", word(69)),
    ("AWS", f"AKIA{UPPER[:16]}", UPPER[:16]),
    ("AWS Bedrock", f"ABSK{word(98)}{word(20)}", word(98)),
    ("Google API key", f"AIza{word(35)}", word(35)),
    ("Google OAuth", f"ya29.{word(60)}", word(60)),
    ("Google OAuth", f"GOCSPX-{word(28)}", word(28)),
    ("Azure application", f"abc8Q~{word(34)}", word(34)),
    ("Alibaba Cloud", f"LTAI{word(20)}", word(20)),
    ("DigitalOcean", f"dop_v1_{HEX[:64]}", HEX[:64]),
    ("Databricks", f"dapi{HEX[:32]}", HEX[:32]),
    ("HashiCorp", f"hvs.{word(90)}", word(90)),
    ("HashiCorp", f"{word(14)}.atlasv1.{word(60)}", word(60)),
    ("Slack", f"xoxb-1234567890-1234567890-{word(24)}", word(24)),
    ("Stripe", f"sk_live_{word(24)}", word(24)),
    ("SendGrid", f"SG.{word(22)}.{word(43)}", word(43)),
    ("Twilio", f"SK{HEX[:32]}", HEX[:32]),
    ("Mailchimp, Mailgun", f"{HEX[:32]}-us12", HEX[:32]),
    ("Grafana", f"glsa_{word(32)}_{HEX[:8]}", word(32)),
    ("Sentry", f"sntryu_{HEX[:64]}", HEX[:64]),
    ("New Relic, Dynatrace, Postman", f"NRAK-{word(27)}", word(27)),
    ("Notion, Linear, Figma, Atlassian", f"lin_api_{word(40)}", word(40)),
    ("Shopify, Square", f"shpat_{HEX[:32]}", HEX[:32]),
    ("Pulumi, Doppler, Prefect, PlanetScale", f"pul-{HEX[:40]}", HEX[:40]),
    ("Fly.io", f"fm2_{word(90)}", word(90)),
    ("1Password", f"ops_eyJ{word(90)}", word(90)),
    ("age", f"AGE-SECRET-KEY-1{UPPER[:58]}", UPPER[:58]),
]
# Texts whose value is masked for the name before it.
NAMED: Final = [
    "HF_TOKEN=hunter2-secret",
    "export AWS_SECRET_ACCESS_KEY=hunter2-secret",
    "WANDB_API_KEY: hunter2-secret",
    "NGC_KEY=hunter2-secret",
    "{'password': 'hunter2-secret', 'user': 'me'}",
    '"client_secret" : "hunter2-secret and hunter2"',
    r'{"line": "{\"password\": \"hunter2 and hunter2\"}"}',
    "password => hunter2-secret",
    "<password>hunter2-secret</password>",
    """run --password 'hunter2 and '"'"'hunter2'""",
    "Authorization: Bearer hunter2-secret",
    "Authorization: Basic hunter2-secret",
    "GH_PAT=hunter2-secret",
    "MYSQL_PWD: hunter2-secret",
    "DB_PASS=hunter2-secret NPM_AUTH=hunter2-secret",
    "SSHPASS=hunter2-secret",
    "Cookie: a=b; session=hunter2-secret",
    "COOKIE=hunter2-secret",
    "JUPYTER_COOKIE=hunter2-secret",
    "SESSION_ID=hunter2-secret",
    "SLACK_WEBHOOK_URL=https://host/hunter2-secret",
    "client-key-data: hunter2-secret",
    "KUBE_CONFIG_DATA=hunter2-secret",
    "CI_JOB_JWT=hunter2-secret",
    "AZURE_STORAGE_CONNECTION_STRING=hunter2-secret",
    "PRIVATE-TOKEN: hunter2-secret",
    "curl --auth-token hunter2-secret https://example.org",
    "run --password=hunter2-secret",
    "https://host/path?access_token=hunter2-secret&page=2",
    "{'token' : 'hunter2-secret'}",
    "fatal: unable to access 'https://me:hunter2-secret@host/repo/': 403",
    "http.extraheader=AUTHORIZATION: basic hunter2-secret",
    "docker run -e HF_TOKEN=hunter2-secret image",
    "wget --http-password=hunter2-secret host",
    "jdbc:postgresql://host/db?user=me&password=hunter2-secret",
    "Enter passphrase: hunter2-secret",
    "sessionid=hunter2-secret",
    "csrftoken=hunter2-secret",
    "X-Api-Key: hunter2-secret",
    "[rank0]: -----BEGIN RSA PRIVATE KEY-----\n[rank0]: hunter2hunter2\n[rank0]: -----END RSA PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\r\nhunter2hunter2\r\n-----END RSA PRIVATE KEY-----\r\n",
]
# Texts that stay as they are, each with the reason.
LEFT: Final = {
    "num_tokens=4096 tokenizer=GPT2BPETokenizer vocab_size: 100": "names of training options",
    "KeyError: 'decoder.layers.self_attention.linear_proj._extra_state/shard_1_2'": "a name in capitals ends in KEY",
    "assert item.index.fqn not in md, key=WriteItem(index=1)": "key alone, in small letters, is no secret",
    "a token is missing, a secret is kept, the password is unknown": "no value follows",
    "torchrun --nproc-per-node 2 --key-file x run.py": "a path",
    'File "/usr/lib/python3.10/site-packages/torch/distributed/checkpoint/utils.py", line 389': "no secret",
    "http://host:8080/path/image@2x.png": "a port, not a password",
    "git+https://host/a.git@main": "a revision",
    "commit 0123456789abcdef0123456789abcdef01234567": "40 hex digits are a commit, or a key of Weights & Biases",
    "mysql -phunter2": "-p has another meaning in every other program",
    "deploy hunter2 now": "nothing shows that it is a secret; a value of the environment is masked everywhere",
    "task-1234567890abcdef disk-0123456789abcdef": "sk- within a word",
    "XDG_SESSION_TYPE=x11": "names of a desktop",
    "PWD=/home/me": "the shell's folder",
    "/x/hf_weight_iterator_bridge.py line 58": "a file",
    "/x/hf_qwen3nextattentionlayerwithrotary.py": "a file",
    "Weight hf_qwen3_next_attention_layer.self_attn": "a weight",
    "npm_config_cache_folder_of_the_user": "a variable",
    "pypi-attestations-of-packages": "a package",
    "`Bearer`, `curl -u`, webhooks": "no user and password",
}
# Variables whose value is a secret wherever it is printed.
SECRET_VARIABLES: Final = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GITLAB_TOKEN CI_JOB_TOKEN CI_JOB_JWT WANDB_API_KEY OPENAI_API_KEY
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_KEY
AZURE_STORAGE_CONNECTION_STRING GOOGLE_API_KEY NGC_API_KEY NVAPI_KEY NPM_TOKEN NODE_AUTH_TOKEN TWINE_PASSWORD
DOCKER_PASSWORD DOCKER_AUTH_CONFIG PGPASSWORD MYSQL_PWD REDISCLI_AUTH SSHPASS SSH_PRIVATE_KEY GPG_PASSPHRASE
VAULT_TOKEN SLACK_BOT_TOKEN SLACK_WEBHOOK_URL DISCORD_WEBHOOK COOKIE JUPYTER_COOKIE SESSION_ID FLASK_SECRET_KEY
KUBE_CONFIG_DATA MY_PASSWORD db_password npm_config__auth GH_PAT BEARER AUTHORIZATION GITHUB_OAUTH HF_TOKEN2
APP_SIGNING_SECRET ENCRYPTION_KEY LICENSE_KEY RCLONE_CONFIG_PASS BORG_PASSPHRASE SENTRY_AUTH_TOKEN
""".split()  # noqa: SIM905
# Variables whose value is none, each with the reason.
PLAIN_VARIABLES: Final = {
    "PATH": "folders",
    "PWD": "the shell's folder",
    "KEYBOARD": "KEY within a word",
    "TOKENIZERS_PARALLELISM": "TOKEN within a word",
    "AUTHOR": "AUTH within a word",
    "COMPAT": "PAT within a word",
    "XDG_DATA_HOME": "a folder",
    "DESKTOP_SESSION": "a name",
    "WANDB_PROJECT": "a name",
    "TRAINING_DATA": "names of data sets; only *_CONFIG_DATA is a secret",
}
