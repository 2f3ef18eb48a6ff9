// Runs clients of the TypeScript SDKs with an MCP server of server.mjs, one after the other, and prints
// their results, a line of JSON for each:
//   node eras.mjs <node_modules> <URL> <client>,… [<URL that changes the tools>]
// The clients are pinned (revision 2026-07-28 alone), auto (the newest revision), earlier (of
// SDK 2) and v1.
import { createRequire } from 'node:module';

const [folder, url, kinds, change] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const answer = async ({ params }) => ({ action: 'accept', content: { name: `name ${params.message}` } });

async function run(kind) {
  const info = [{ name: `rejoin-${kind}`, version: '1' }, { capabilities: { elicitation: { form: {} } } }];
  let changed;
  const heard = new Promise((resolve) => { changed = resolve; });
  let client, transport;
  if (kind === 'v1') {
    const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { ElicitRequestSchema, ToolListChangedNotificationSchema } = require('@modelcontextprotocol/sdk/types.js');
    client = new Client(...info);
    client.setRequestHandler(ElicitRequestSchema, answer);
    client.setNotificationHandler(ToolListChangedNotificationSchema, changed);
    transport = new StreamableHTTPClientTransport(new URL(url));
  } else {
    const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
    const mode = { pinned: { pin: '2026-07-28' }, auto: 'auto', earlier: 'legacy' }[kind];
    client = new Client(info[0], { ...info[1], versionNegotiation: { mode } });
    client.setRequestHandler('elicitation/create', answer);
    client.setNotificationHandler('notifications/tools/list_changed', changed);
    transport = new StreamableHTTPClientTransport(new URL(url));
  }
  const call = async (name, args, onprogress) => {
    const params = { name, arguments: args };
    const result = await (kind === 'v1' ? client.callTool(params, undefined, { onprogress }) : client.callTool(params, { onprogress }));
    return result.content[0].text;
  };
  await client.connect(transport);
  const did = { server: client.getServerVersion().name };
  if (kind !== 'v1') did.version = client.getNegotiatedProtocolVersion();
  did.tools = (await client.listTools()).tools.map(({ name }) => name).join();
  did.greet = await call('greet', { who: 'you' });
  did.ask = await Promise.all([call('ask', { n: 1 }), call('ask', { n: 2 }), call('ask', { n: 3 })]);
  did.progress = [];
  did.count = await call('count', {}, ({ progress }) => did.progress.push(progress));
  if (change) {
    if (did.version === '2026-07-28') await client.listen({ toolsListChanged: true });
    // The stream of an earlier revision has no acknowledgement.
    const again = setInterval(() => fetch(change, { method: 'POST' }), did.version === '2026-07-28' ? 10_000 : 200);
    await fetch(change, { method: 'POST' });
    await heard;
    clearInterval(again);
    did.heard = true;
  }
  await client.close();
  return did;
}

for (const kind of kinds.split(',')) console.log(JSON.stringify(await run(kind)));
process.exit(0);
