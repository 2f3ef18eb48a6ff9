// Calls one tool with a TypeScript SDK and writes the outcomes, a line of JSON each:
//   node client.mjs <folder of the SDK> <URL> <tool> <arguments as JSON> [<revision of MCP>]
import { existsSync } from 'node:fs';

const [sdk, url, tool, args, revision] = process.argv.slice(2);
const tell = (line) => console.log(JSON.stringify(line));

const v1 = existsSync(`${sdk}/dist/esm`);
const { Client } = await import(v1 ? `${sdk}/dist/esm/client/index.js` : `${sdk}/dist/index.mjs`);
const { StreamableHTTPClientTransport } = await import(v1 ? `${sdk}/dist/esm/client/streamableHttp.js` : `${sdk}/dist/index.mjs`);

const client = new Client({ name: 'rejoin-e2e', version: '1' }, revision ? { versionNegotiation: { mode: { pin: revision } } } : {});
const transport = new StreamableHTTPClientTransport(new URL(url));
client.onerror = (error) => tell({ trouble: String(error) });
await client.connect(transport);
const options = { timeout: 60_000, onprogress: ({ progress }) => tell({ progress }) };
const params = { name: tool, arguments: JSON.parse(args) };
try {
  const result = await (v1 ? client.callTool(params, undefined, options) : client.callTool(params, options));
  tell({ result: result.content[0].text });
} catch (error) {
  tell({ error: String(error) });
}
// The end of standard input ends the client.
for await (const _ of process.stdin);
client.onerror = undefined; // errors of its own end are ignored
await transport.terminateSession();
await client.close();
