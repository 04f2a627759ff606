BEGIN TRANSACTION;
CREATE TABLE autotune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT autotune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "autotune_version" VALUES('0002');
CREATE TABLE benchmark_specs (
	"key" TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "benchmark_specs" VALUES('8b4dc4e4b122adf59428bc024f749858','{"allocator":"sample","build_timeout_s":60.5,"cache_state":"warm","final_budget_s":10.5,"final_pairs":41,"give_up_ratio":0.61,"max_final_pairs":81,"memory_limit_bytes":34359738368,"min_sample_ns":100001,"run_timeout_s":120.5,"screen_budget_s":2.5,"screen_pairs":11,"tolerated_contention":0.1}');
CREATE TABLE best (
	workload_key TEXT NOT NULL, 
	hardware_key TEXT NOT NULL, 
	environment_key TEXT NOT NULL, 
	config_key TEXT NOT NULL, 
	kernel_revision TEXT NOT NULL, 
	expected_ns DOUBLE NOT NULL, 
	baseline_ns DOUBLE NOT NULL, 
	speedup DOUBLE NOT NULL, 
	speedup_low DOUBLE NOT NULL, 
	speedup_high DOUBLE NOT NULL, 
	max_error DOUBLE, 
	contended BOOLEAN NOT NULL, 
	measured_at DATETIME NOT NULL, 
	uid TEXT NOT NULL, 
	PRIMARY KEY (workload_key, hardware_key, environment_key, config_key)
)
 WITHOUT ROWID

;
INSERT INTO "best" VALUES('2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','82e50ddb5637142593b8b7930d50f388','r1',200.0,100.0,0.5,0.5,0.5,1.0e-07,0,'2026-01-31 09:30:01.500000','97a8b4941e4b99123e31091ca990f418');
INSERT INTO "best" VALUES('2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','a91ad164e41e5415bd9ab2b20b18ae5c','r1',100.5,201.0,2.0,2.0,2.0,1.0e-07,0,'2026-01-31 09:30:00.000000','eaa3b701de829b9a14ed49931f3c1d8a');
CREATE TABLE configs (
	"key" TEXT NOT NULL, 
	algorithm TEXT NOT NULL, 
	placement TEXT NOT NULL, 
	params TEXT NOT NULL, 
	PRIMARY KEY ("key")
)
 WITHOUT ROWID

;
INSERT INTO "configs" VALUES('82e50ddb5637142593b8b7930d50f388','tiled','cpu','{"mr":2}');
INSERT INTO "configs" VALUES('8ae2c167afbfb557f7aba30734ace981','tiled','cpu','{"mr":3}');
INSERT INTO "configs" VALUES('a91ad164e41e5415bd9ab2b20b18ae5c','tiled','cpu','{"mr":6,"nr":16,"order":["m","n",["k",0.5]],"pack":true,"threads":1}');
CREATE TABLE environments (
	"key" TEXT NOT NULL, 
	framework TEXT NOT NULL, 
	compiler TEXT NOT NULL, 
	identity TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "environments" VALUES('c0995b673063ea94f6ac98b8ba3b1c25','torch 2.13.0+cpu','g++ 12.2.0','{"allocator":"","compiler":"g++ 12.2.0","driver":"","framework":"torch 2.13.0+cpu","libraries":["numpy 2.4.6"],"num_threads":"","system":"linux","threads":"gomp","wait_policy":""}');
CREATE TABLE hardware (
	"key" TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	vendor TEXT NOT NULL, 
	arch TEXT NOT NULL, 
	allowed_cpus BIGINT NOT NULL, 
	memory_bytes BIGINT NOT NULL, 
	profile TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "hardware" VALUES('187e2689eba017d941e3c135bdeed3ee','cpu','Sample CPU @ 2.00GHz','Sample','x86_64',16,68719476736,'{"allowed_cpus":16,"arch":"x86_64","bandwidth_gbs":0.0,"caches":[{"level":1,"shared_by":2,"size_bytes":32768},{"level":2,"shared_by":2,"size_bytes":1048576},{"level":3,"shared_by":16,"size_bytes":33554432}],"efficiency_cores":0,"isa":["avx2","fma"],"kind":"cpu","logical_cores":16,"memory_bytes":68719476736,"model":"family 1 model 2 stepping 3","name":"Sample CPU @ 2.00GHz","numa_nodes":1,"peak_gflops":{},"performance_cores":0,"physical_cores":8,"slice":"","vendor":"Sample"}');
INSERT INTO "hardware" VALUES('faf1107891ecc2a652f9fcbd1809b101','cpu','Other CPU','Sample','x86_64',16,68719476736,'{"allowed_cpus":16,"arch":"x86_64","bandwidth_gbs":0.0,"caches":[{"level":1,"shared_by":2,"size_bytes":32768},{"level":2,"shared_by":2,"size_bytes":1048576},{"level":3,"shared_by":16,"size_bytes":33554432}],"efficiency_cores":0,"isa":["avx2","fma"],"kind":"cpu","logical_cores":16,"memory_bytes":68719476736,"model":"family 9","name":"Other CPU","numa_nodes":1,"peak_gflops":{},"performance_cores":0,"physical_cores":8,"slice":"","vendor":"Sample"}');
CREATE TABLE jobs (
	workload_key TEXT NOT NULL, 
	hardware_key TEXT NOT NULL, 
	environment_key TEXT NOT NULL, 
	space_key TEXT NOT NULL, 
	trials BIGINT NOT NULL, 
	finished_at DATETIME NOT NULL, 
	PRIMARY KEY (workload_key, hardware_key, environment_key, space_key)
)
 WITHOUT ROWID

;
INSERT INTO "jobs" VALUES('2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','space',3,'2026-12-01 01:49:58.676897');
CREATE TABLE measurements (
	uid TEXT NOT NULL, 
	workload_key TEXT NOT NULL, 
	hardware_key TEXT NOT NULL, 
	environment_key TEXT NOT NULL, 
	config_key TEXT NOT NULL, 
	spec_key TEXT NOT NULL, 
	kernel_revision TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	status TEXT NOT NULL, 
	message TEXT NOT NULL, 
	median_ns DOUBLE, 
	baseline_median_ns DOUBLE, 
	speedup DOUBLE, 
	speedup_low DOUBLE, 
	speedup_high DOUBLE, 
	max_error DOUBLE, 
	times_ns TEXT NOT NULL, 
	baseline_ns TEXT NOT NULL, 
	prepare_ns BIGINT NOT NULL, 
	build_ns BIGINT NOT NULL, 
	workspace_bytes BIGINT NOT NULL, 
	contended BOOLEAN NOT NULL, 
	job TEXT NOT NULL, 
	repetition BIGINT NOT NULL, 
	source TEXT NOT NULL, 
	measured_at DATETIME NOT NULL, 
	PRIMARY KEY (uid)
);
INSERT INTO "measurements" VALUES('eaa3b701de829b9a14ed49931f3c1d8a','2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','a91ad164e41e5415bd9ab2b20b18ae5c','8b4dc4e4b122adf59428bc024f749858','r1','final','OK','',100.5,201.0,2.0,2.0,2.0,1.0e-07,'[100,101,99,102]','[200,202,198,204]',0,0,0,0,'job-1',0,'measured','2026-01-31 09:30:00.000000');
INSERT INTO "measurements" VALUES('97a8b4941e4b99123e31091ca990f418','2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','82e50ddb5637142593b8b7930d50f388','8b4dc4e4b122adf59428bc024f749858','r1','final','OK','',200.0,100.0,0.5,0.5,0.5,1.0e-07,'[200,210,190]','[100,105,95]',0,0,0,0,'job-1',0,'measured','2026-01-31 09:30:01.500000');
INSERT INTO "measurements" VALUES('0673651921e22d4db34dfaef7681d512','2d5c4b98c7528a9d60c3da183e8ccf82','187e2689eba017d941e3c135bdeed3ee','c0995b673063ea94f6ac98b8ba3b1c25','8ae2c167afbfb557f7aba30734ace981','8b4dc4e4b122adf59428bc024f749858','r1','final','TIMEOUT','took ''too'' long',NULL,NULL,NULL,NULL,NULL,NULL,'[]','[]',0,0,0,0,'',0,'measured','2026-01-31 09:30:00.000000');
INSERT INTO "measurements" VALUES('fe086fd8aa9956c7e994b8d7314b640b','7fff3caf1f4477127977e884d7468ec8','faf1107891ecc2a652f9fcbd1809b101','c0995b673063ea94f6ac98b8ba3b1c25','a91ad164e41e5415bd9ab2b20b18ae5c','8b4dc4e4b122adf59428bc024f749858','r1','screen','OK','',100.5,201.0,2.0,NULL,NULL,NULL,'[100,101,99,102]','[200,202,198,204]',0,0,1099511627776,0,'job-1',0,'measured','2026-01-31 09:30:02.000000');
CREATE TABLE wishes (
	workload_key TEXT NOT NULL, 
	hardware_key TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	asked BIGINT NOT NULL, 
	weight DOUBLE NOT NULL, 
	first_asked_at DATETIME NOT NULL, 
	last_asked_at DATETIME NOT NULL, 
	taken_by TEXT NOT NULL, 
	taken_until DATETIME, 
	granted_at DATETIME, 
	PRIMARY KEY (workload_key, hardware_key)
)
 WITHOUT ROWID

;
INSERT INTO "wishes" VALUES('b39185045cb677ca54ac9b42b9172d17','','gemm m=3 n=2 k=1 dtype=f32',2,1.5,'2026-12-01 01:49:58.678223','2026-12-01 01:49:58.678223','',NULL,NULL);
CREATE TABLE workloads (
	"key" TEXT NOT NULL, 
	op TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	dims TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	flops BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	tolerance DOUBLE, 
	default_config TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "workloads" VALUES('2d5c4b98c7528a9d60c3da183e8ccf82','linear','linear m=1 n=4096 k=1024 dtype=f32','{"dtype":"f32","k":1024,"m":1,"n":4096}','f32',8388608,16797696,1.54972076416015625e-05,'846fe62d983dbd34498e272e8379447e');
INSERT INTO "workloads" VALUES('7fff3caf1f4477127977e884d7468ec8','gemm','gemm m=320 n=2560 k=3072 batch=8 dtype=f32 b_layout=expanded','{"b_layout":"expanded","batch":8,"dtype":"f32","k":3072,"m":320,"n":2560}','f32',40265318400,309329920,2.66674164973278380306e-05,'846fe62d983dbd34498e272e8379447e');
CREATE INDEX measurements_fastest ON measurements (workload_key, hardware_key, environment_key, median_ns) WHERE status = 'OK';
CREATE INDEX measurements_identity ON measurements (workload_key, hardware_key, environment_key, config_key);
CREATE INDEX measurements_by_time ON measurements (measured_at, uid);
CREATE VIEW best_configs AS
SELECT w.op, w.spec AS workload, h.name AS hardware, h.allowed_cpus, e.framework, c.algorithm, c.params, c.placement,
       b.expected_ns, b.baseline_ns, b.speedup, b.speedup_low, b.speedup_high, b.beats_default, b.max_error,
       b.contended, b.kernel_revision, b.measured_at,
       b.workload_key, b.hardware_key, b.environment_key, b.config_key
FROM (
    SELECT ranked.*, row_number() OVER (
               PARTITION BY workload_key, hardware_key, environment_key
               ORDER BY beats_default DESC, is_default DESC, speedup DESC, config_key
           ) AS place
    FROM (
        SELECT d.*,
               CASE WHEN d.config_key <> v.default_config AND d.speedup >= 1.02 AND d.speedup_low > 1
                         AND d.max_error <= v.tolerance AND NOT d.contended THEN 1 ELSE 0 END AS beats_default,
               CASE WHEN d.config_key = v.default_config THEN 1 ELSE 0 END AS is_default
        FROM best AS d JOIN workloads AS v ON v.key = d.workload_key
    ) AS ranked
) AS b
JOIN workloads AS w ON w.key = b.workload_key
JOIN hardware AS h ON h.key = b.hardware_key
JOIN environments AS e ON e.key = b.environment_key
JOIN configs AS c ON c.key = b.config_key
WHERE b.place = 1;
CREATE VIEW failures AS
SELECT m.status, m.message, w.op, w.spec AS workload, c.algorithm, c.params, c.placement, h.name AS hardware,
       e.framework, m.stage, m.max_error, m.kernel_revision, m.job, m.measured_at, m.uid
FROM measurements AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key
JOIN configs AS c ON c.key = m.config_key
WHERE m.status <> 'OK';
CREATE VIEW coverage AS
SELECT w.op, w.spec AS workload, h.name AS hardware, h.allowed_cpus, e.framework,
       m.measurements, m.configs, m.ok, m.failed,
       (SELECT count(*) FROM best AS b WHERE b.workload_key = m.workload_key AND b.hardware_key = m.hardware_key
            AND b.environment_key = m.environment_key) AS decided,
       (SELECT max(j.finished_at) FROM jobs AS j WHERE j.workload_key = m.workload_key
            AND j.hardware_key = m.hardware_key AND j.environment_key = m.environment_key) AS finished_at,
       m.last_measured_at, m.workload_key, m.hardware_key, m.environment_key
FROM (
    SELECT workload_key, hardware_key, environment_key,
           count(*) AS measurements, count(DISTINCT config_key) AS configs,
           sum(CASE WHEN status = 'OK' THEN 1 ELSE 0 END) AS ok,
           sum(CASE WHEN status = 'OK' THEN 0 ELSE 1 END) AS failed,
           max(measured_at) AS last_measured_at
    FROM measurements
    GROUP BY workload_key, hardware_key, environment_key
) AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key;
CREATE VIEW top_gains AS
SELECT op, workload, hardware, framework, algorithm, params, placement, speedup, speedup_low, speedup_high,
       baseline_ns, expected_ns, baseline_ns - baseline_ns / speedup AS saved_ns, max_error, measured_at,
       workload_key, hardware_key, environment_key, config_key
FROM best_configs
WHERE beats_default = 1;
CREATE VIEW open_wishes AS
SELECT w.spec AS workload, h.name AS hardware, w.asked, w.weight, w.first_asked_at, w.last_asked_at, w.taken_by,
       w.taken_until, w.workload_key, w.hardware_key
FROM wishes AS w
LEFT JOIN hardware AS h ON h.key = w.hardware_key
WHERE w.granted_at IS NULL;
CREATE VIEW search_history AS
SELECT w.op, w.spec AS workload, h.name AS hardware, e.framework,
       row_number() OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key
                          ORDER BY m.measured_at, m.uid) AS trial,
       m.stage, m.status, c.algorithm, c.params, m.speedup, m.median_ns,
       max(m.speedup) OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key
                            ORDER BY m.measured_at, m.uid) AS best_so_far,
       m.contended, m.measured_at, m.workload_key, m.hardware_key, m.environment_key, m.config_key
FROM measurements AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key
JOIN configs AS c ON c.key = m.config_key;
COMMIT;
