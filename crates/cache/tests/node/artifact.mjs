// Drives @actions/artifact: `upload NAME FILE…`, `list`, `download NAME FOLDER`, `delete NAME`.
// The last line of the output is the result.
import { DefaultArtifactClient } from '@actions/artifact'

const client = new DefaultArtifactClient()
const [what, name, ...rest] = process.argv.slice(2)
const run = {
  upload: () => client.uploadArtifact(name, rest, process.cwd(), { compressionLevel: 0 }),
  raw: () => client.uploadArtifact(name, rest, process.cwd(), { skipArchive: true }),
  list: () => client.listArtifacts(),
  download: async () => {
    const { artifact } = await client.getArtifact(name)
    return client.downloadArtifact(artifact.id, { path: rest[0], expectedHash: artifact.digest })
  },
  delete: () => client.deleteArtifact(name)
}
try {
  console.log(`RESULT ${JSON.stringify(await run[what]())}`)
} catch (error) {
  console.log(`FAILED ${error.name}: ${error.message}`)
  process.exit(1)
}
