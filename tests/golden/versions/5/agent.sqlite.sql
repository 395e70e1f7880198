BEGIN TRANSACTION;
CREATE TABLE actions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE,
    workload_id TEXT NOT NULL,
    action_type TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT NOT NULL,
    generation INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL
);
INSERT INTO "actions" VALUES(1,'task_pb9nmvi03h9y7cgl','web','apply_workload','completed','',1,1794997850021,1794997850033,1794997850316);
INSERT INTO "actions" VALUES(3,'task_llr17t1zgvojdlfy','single','apply_workload','completed','',1,1794997850067,1794997850123,1794997850524);
INSERT INTO "actions" VALUES(5,'task_bz2le8o0ht3qe9oc','once','apply_workload','completed','',1,1794997850257,1794997850315,1794997850552);
INSERT INTO "actions" VALUES(8,'task_kx51zcinrw50yzke','broken','apply_workload','completed','',1,1794997850430,1794997850477,1794997850668);
INSERT INTO "actions" VALUES(13,'task_0pkoas6mx82qi7u3','broken','apply_workload','completed','',2,1794997851168,1794997851176,1794997851275);
INSERT INTO "actions" VALUES(15,'task_0ufarxrv0xun16us','web','apply_workload','completed','',2,1794997851238,1794997851241,1794997851241);
INSERT INTO "actions" VALUES(18,'task_5jjz3d4g9mfbyd3k','broken','apply_workload','completed','',3,1794997853732,1794997853739,1794997853739);
CREATE TABLE generations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    workload_id TEXT NOT NULL UNIQUE,
    highest INTEGER NOT NULL
);
INSERT INTO "generations" VALUES(2,'single',1);
INSERT INTO "generations" VALUES(3,'once',1);
INSERT INTO "generations" VALUES(6,'web',2);
INSERT INTO "generations" VALUES(7,'broken',3);
CREATE TABLE intents (
    workload_id TEXT PRIMARY KEY,
    type TEXT NOT NULL,
    revision_id TEXT NOT NULL,
    desired TEXT NOT NULL,
    spec BLOB NOT NULL,
    spec_sha256 BLOB NOT NULL,
    generation INTEGER NOT NULL,
    born INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    deleting INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    progress TEXT NOT NULL
);
INSERT INTO "intents" VALUES('web','process','v2','Running',X'A2066B0A05736C6565700A043336303012090A05454D505459120012170A084752454554494E47120B6772C3BCC39F20476F747432130A06616C7761797318C80120E0D40328E0D4033A111A060A0474727565506458E80760E0D40342080A03494E5410D00F4A060A0468747470AA06080864104018012001',X'5AE917FABDF9210E1C8EA5313524443ADFE30A9AA8664B406844778AADBA7A42',2,1,0,0,1794997850021,1794997851237,'{"born":1,"run_id":"web-59bl6aw30n","run_sha256":"5ae917fabdf9210e1c8ea5313524443adfe30a9aa8664b406844778aadba7a42","attempt":0,"started_ms":1794997850040,"ports":{"http":22870},"ready":true,"ended":false,"exit":null,"last_output":"","held":false,"outcome":"none","failure":"FAILURE_REASON_UNSPECIFIED","message":"","failures":0,"start_failures":0,"restarts":0,"next_start_ms":null,"failed_generation":0}');
INSERT INTO "intents" VALUES('single','process','2e788a8a1b643619df6c08ccd45f6edaffe6e758ae85367f3eade8bb53d58467','Running',X'A2062D0A05736C6565700A043336303032130A06616C7761797318F40320E0D40328E0D40342090A045445524D10904EAA0600B00601',X'D4DE72807890896366A6F56FC78B2087AE51B160FC4E86F744C789DBB2AA3F3E',1,1,0,0,1794997850066,1794997850066,'{"born":1,"run_id":"single-hqmn8x3t2b","run_sha256":"d4de72807890896366a6f56fc78b2087ae51b160fc4e86f744c789dbb2aa3f3e","attempt":0,"started_ms":1794997850440,"ports":{},"ready":true,"ended":false,"exit":null,"last_output":"","held":false,"outcome":"none","failure":"FAILURE_REASON_UNSPECIFIED","message":"","failures":0,"start_failures":0,"restarts":0,"next_start_ms":null,"failed_generation":0}');
INSERT INTO "intents" VALUES('once','process','8b1daef73789b7301a864058e3ec5ef826385aacbc164075f780ed32149727d3','Running',X'A2062F0A0273680A022D630A096563686F20646F6E65320F0A026E6F18F40320E0D40328E0D40342090A045445524D10904EAA0600',X'6A87F8E1A96E84655CE2A1768A853E27EC72515BCAB7722F091B100CBA259816',1,1,0,0,1794997850257,1794997850257,'{"born":1,"run_id":"once-b7h6gk2ajz","run_sha256":"6a87f8e1a96e84655ce2a1768a853e27ec72515bcab7722f091b100cba259816","attempt":0,"started_ms":1794997850484,"ports":{},"ready":false,"ended":true,"exit":{"code":0,"signal":0,"unknown":false,"ended_ms":1794997850526,"out_of_memory":false},"last_output":"done\n","held":false,"outcome":"completed","failure":"FAILURE_REASON_UNSPECIFIED","message":"exited with code 0","failures":0,"start_failures":0,"restarts":0,"next_start_ms":null,"failed_generation":0}');
INSERT INTO "intents" VALUES('broken','process','b1565382af9a411d3b17e3d7aaf24022380f5d67421160c2e66871a89a2ff394','Stopped',X'A206460A0273680A022D630A176563686F2062726F6B656E203E26323B2065786974203332180A0A6F6E2D6661696C7572651001183220E0D40328E0D40342090A045445524D10904EAA0600',X'9407A23B5BB6763548BF6212E50F304A034908F06725432281E0A8F7B59F2943',3,1,1,0,1794997850419,1794997853732,'{"born":1,"run_id":"broken-leocku9h1b","run_sha256":"9407a23b5bb6763548bf6212e50f304a034908f06725432281e0a8f7b59f2943","attempt":1,"started_ms":1794997851413,"ports":{},"ready":false,"ended":true,"exit":{"code":3,"signal":0,"unknown":false,"ended_ms":1794997851476,"out_of_memory":false},"last_output":"broken\n","held":false,"outcome":"none","failure":"FAILURE_REASON_UNSPECIFIED","message":"exited with code 3; gave up after 1 restarts","failures":0,"start_failures":0,"restarts":3,"next_start_ms":null,"failed_generation":2}');
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('node_id','real');
INSERT INTO "meta" VALUES('session','001794997849896-fnudpwzar4z32n3q8exbahgvdd');
INSERT INTO "meta" VALUES('term','1794997847');
CREATE TABLE secrets (
    workload_id TEXT PRIMARY KEY,
    sealed BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX actions_of_workload ON actions (workload_id, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('generations',7);
INSERT INTO "sqlite_sequence" VALUES('actions',19);
COMMIT;
PRAGMA user_version=1;
